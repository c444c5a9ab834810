"""Write the tables in docs/profile.md anew from the records in docs/profile/."""

import argparse
import sys

from harness import packing, profile_page
from harness.atomic_file import write_atomically


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether they are up to date")
    check = parser.parse_args().check
    try:
        old = profile_page.PAGE.read_text()
        new = profile_page.renewed(old)
    except (ValueError, OSError, packing.PackingError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and new != old:
        print("docs/profile.md is out of date: run `make profile`", file=sys.stderr)
        return 1
    if not check:
        write_atomically(profile_page.PAGE, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
