"""The part of a Markdown page that a command writes, between two markers."""


def replaced(page: str, begin: str, end: str, block: str, name: str) -> str:
    """The page with `block` between its markers. Raises ValueError, with the page's name, when one is missing."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{name} lacks the marker {end if found_begin else begin}")
    return f"{before}{begin}\n\n{block}\n\n{end}{after}"
