"""Write the tables in docs/tune.md anew, from the records in docs/tune/."""

import argparse
import sys

from harness import tune_page
from harness.atomic_file import write_atomically


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        text = tune_page.renewed(tune_page.PAGE.read_text())
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    write_atomically(tune_page.PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
