"""A checkpoint without its multi-token-prediction modules: ``python tools/drop_mtp.py FOLDER TARGET``.

Engines that do not know such modules refuse a Llama that has them. Needs `safetensors`, no framework.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from safetensors.numpy import load_file, save_file


def convert(folder: Path, target: Path) -> None:
    """Write config.json and model.safetensors of the decoder alone, and copy the tokenizer."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    config.pop("num_nextn_predict_layers", None)
    tensors = {
        name: array
        for name, array in load_file(folder / "model.safetensors").items()
        if not (layer := re.match(r"model\.layers\.(\d+)\.", name)) or int(layer[1]) < layers
    }
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for file in (*folder.glob("tokenizer*.json"), *folder.glob("chat_template.jinja")):
        shutil.copyfile(file, target / file.name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
