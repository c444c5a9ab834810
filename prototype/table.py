"""table.py RECORD...: the faster path of each shape and token count as Markdown, time over target."""
import json
import sys

rows = {}
for path in sys.argv[1:]:
    for r in json.load(open(path)):
        if "path" in r:
            rows.setdefault(r["shape"], {}).setdefault(r["T"], {})[r["path"]] = r
tokens = sorted({t for of in rows.values() for t in of})
print("| shape | " + " | ".join(f"T={t}" for t in tokens) + " |")
print("|" + " --- |" * (len(tokens) + 1))
for shape, of in rows.items():
    cells = []
    for t in tokens:
        cell = " / ".join(f"{of[t][p]['ms']:.4g} {p} ({of[t][p]['of_target']:.2f})" for p in ("one", "many") if p in of.get(t, {}))
        bound = next(iter(of[t].values()))["bound"] if t in of else 0
        cells.append(f"{cell}; bound {bound:.3g}")
    print(f"| {shape} | " + " | ".join(cells) + " |")
