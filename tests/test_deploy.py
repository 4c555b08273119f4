"""The files in deploy/ start servers that answer where they say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from specdec_hal.config.schema import ServeSettings
from tests.support.command import serve

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DRAIN_S = ServeSettings().drain_timeout_s


def read(path: str) -> Any:
    text = (DEPLOY / path).read_text().replace("!override", "")
    documents = list(yaml.safe_load_all(text))
    return documents[0] if len(documents) == 1 else {one["kind"]: one for one in documents}


def entry_point(path: str) -> list[str]:
    (words,) = re.findall(r"^ENTRYPOINT (.*)$", (ROOT / path).read_text(), re.MULTILINE)
    return [word.replace("/app/", f"{ROOT}/") for word in json.loads(words)]


def pod() -> Any:
    return read("kubernetes/specdec-hal.yaml")["Deployment"]["spec"]["template"]["spec"]


STARTS = {
    "compose": lambda: entry_point("Dockerfile") + read("compose/compose.yaml")["services"]["server"]["command"],
    "compose on a GPU": lambda: (
        entry_point("deploy/gpu.Dockerfile") + read("compose/gpu.yaml")["services"]["server"]["command"]
    ),
    "kubernetes": lambda: entry_point("deploy/gpu.Dockerfile") + pod()["containers"][0]["args"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STARTS)
def test_servers_start_with_these_arguments(kind: str) -> None:
    """On a CPU with the embedded model, and answer all probes; SIGTERM ends them."""
    words = STARTS[kind]()[2:]
    folder = str(ROOT / "models/tiny-py-lm")
    arguments = [folder if word in ("/model", "/data/model") else word for word in words]
    with serve(*arguments, "--set", "engine.warm_up=false") as (process, client):
        (container,) = pod()["containers"]
        paths = [container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")]
        origin = str(client.base_url).removesuffix("/v1/")
        assert [httpx.get(f"{origin}{path}").status_code for path in [*paths, "/metrics"]] == [200] * 4
        assert httpx.get(f"{origin}/v1/models").status_code == 401, "the key is asked for"
        assert client.completions.create(model="tiny-py-lm", prompt="def f(", max_tokens=3).choices[0].text
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_stops_last_longer_than_a_drain() -> None:
    (compose,) = re.findall(r"(\d+)s", read("compose/compose.yaml")["services"]["server"]["stop_grace_period"])
    (unit,) = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "systemd/specdec-hal.service").read_text(), re.MULTILINE)
    for seconds in (int(compose), int(unit), pod()["terminationGracePeriodSeconds"]):
        assert seconds > DRAIN_S


def test_files_that_compose_mounts_exist() -> None:
    services = read("compose/compose.yaml")["services"]
    mounts = [volume.split(":")[0] for name in ("prometheus", "grafana") for volume in services[name]["volumes"]]
    assert len(mounts) == 4 and all((DEPLOY / "compose" / mount).exists() for mount in mounts)
    assert (DEPLOY / "compose" / services["server"]["build"]).resolve() == ROOT
    build = read("compose/gpu.yaml")["services"]["server"]["build"]
    assert (DEPLOY / "compose" / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_systemd_s(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/specdec-hal.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(command)
    assert words == ["serve", "--config", "/etc/specdec-hal.yaml"]
    unit = tmp_path / "specdec-hal.service"
    unit.write_text(text.replace(program, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and str(unit.name) not in done.stderr, done.stderr
