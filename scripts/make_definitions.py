"""Write definitions/<op_type>/<name>.json, FIB's form of the definitions, from the modules that state them."""

from harness import paths
from harness.catalogue import GEOMETRIES, definition


def main() -> None:
    for geometry in GEOMETRIES:
        stated = definition(geometry)
        path = paths.definition_file(stated.name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(stated.model_dump_json(indent=2, exclude_unset=True) + "\n")
        print(path.relative_to(paths.ROOT))


if __name__ == "__main__":
    main()
