"""List the fields of a config.json that seem to be about the experts and that nothing here reads.

`moebench model` shows them to the user, as one of them may change what the experts do.
"""

import re

from moebench.models.checkpoint.fields import facts

ABOUT_EXPERTS = re.compile(
    r"moe|expert|rout|top_?k|softcap|swiglu|latent|gate_limit|mlp_bias|glu_"
)
# Names with one of these are about attention, the vocabulary's logits, or what is returned.
ABOUT_OTHERS = re.compile(
    r"attn|attention|^output_|^final_|^index|lora|kv_|vision|audio|tokens?_"
)


def not_understood(values: dict) -> dict[str, object]:
    """Return name -> value of such fields. values: the part of a config.json on the language model.

    A field that is null, false, zero or empty changes nothing and is left out.
    """
    outside = facts()["outside"]
    read = set(outside["names"])
    for names in facts()["fields"].values():
        read.update(names)

    unread = {}
    for name, value in values.items():
        if not value or name in read:
            continue
        if ABOUT_OTHERS.search(name) or not ABOUT_EXPERTS.search(name):
            continue
        if any(pattern in name for pattern in outside["patterns"]):
            continue
        unread[name] = value
    return unread
