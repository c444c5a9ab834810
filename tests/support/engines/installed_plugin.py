"""A package as pip installs it: in a folder, with the entry points by which engines find it."""

from moebench.packing import python_package


def install(solution, layer_key, parent):
    """Pack a solution's package into parent, as an installed plugin `moe`; return its folder."""
    (folder,) = python_package.pack_packages([solution], parent, [layer_key])
    metadata = parent / "moe-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moe\nVersion: 1\n")

    lines = []
    for group, module in python_package.ADAPTERS.items():
        lines += [f"[{group}]", f"moe = {folder.name}.{module}:register"]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder
