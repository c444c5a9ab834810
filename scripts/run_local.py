"""`moebench run`, under the name that the public starter kit gives it."""

import sys

from harness.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
