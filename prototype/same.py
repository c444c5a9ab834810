import json, sys
from pathlib import Path
def load(name):
    p = Path(sys.argv[1], name)
    traces = [json.loads(text) for text in p.read_text().splitlines()] if p.exists() else []
    return {(t["definition"], t["solution"], t["workload"]["uuid"]): t["evaluation"] for t in traces}
one, two, ofone = load("one.jsonl"), load("two.jsonl"), load("ray-of-one.jsonl")
for name, other in (("two", two), ("of one", ofone)):
    same = {k: e["status"] for k, e in one.items()} == {k: e["status"] for k, e in other.items()}
    print(f"{name}: same verdicts: {same}, of {len(one)} and {len(other)} cells, passed {sum(e['status'] == 'PASSED' for e in other.values())}")
    ratios = sorted(other[k]["performance"]["latency_ms"] / one[k]["performance"]["latency_ms"] for k in one if k in other and (other[k].get("performance") or {}).get("latency_ms") and (one[k].get("performance") or {}).get("latency_ms"))
    if ratios:
        print("latency through Ray over that without: min %.3f median %.3f max %.3f" % (ratios[0], ratios[len(ratios) // 2], ratios[-1]))
print("hosts:", sorted({str(e["environment"]["libs"].get("host")) for e in two.values()}))
