"""Packages as pip installs them: in a folder, with the entry points by which engines find them."""

from moebench.packing import python_package


def install(solution, layer_keys, parent):
    """Pack a solution's packages into parent, as plugins of an installed `moe`; return their
    folders.
    """
    folders = python_package.pack_packages([solution], parent, layer_keys)
    metadata = parent / "moe-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moe\nVersion: 1\n")

    lines = []
    for group, module in python_package.ADAPTERS.items():
        lines.append(f"[{group}]")
        lines += [
            f"{folder.name} = {folder.name}.{module}:register" for folder in folders
        ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folders
