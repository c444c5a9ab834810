"""What `moebench docs` writes into README.md and docs/, or checks there.

pages        which tables and figures there are; generated writes them
sentences    the numbers in sentences, which computed computes
page         a page's text, in which both are compared and written
"""
