"""Charts: well-formed, inside their frame, with round labels."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from specdec_hal.bench.chart import Panel, drawing

SVG = "{http://www.w3.org/2000/svg}"


def texts(document: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(document).iter(f"{SVG}text")]


def test_a_line_keeps_to_its_axes() -> None:
    document = drawing("a < b", [Panel("loss", "step", "y", {"one": [(0, 4.0), (10, 1.0), (20, float("nan"))]})])
    assert texts(document)[0] == "a < b"
    (line,) = (path for path in ET.fromstring(document).iter(f"{SVG}path") if "L" in path.attrib["d"])
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", line.attrib["d"])[1:]]
    assert points == [(52.0, 34.0), (184.0, 161.5)]  # the top left corner; half of 20, a quarter of 4


@pytest.mark.parametrize(
    ("xs", "whole", "labels"),
    [
        (range(3), True, ["0", "1", "2"]),
        ([5], True, ["5"]),
        ([0, 3000], False, ["0", "1,000", "2,000", "3,000"]),
    ],
)
def test_labels_are_round(xs: list[int], whole: bool, labels: list[str]) -> None:
    shown = texts(drawing("t", [Panel("p", "x", "y", {"line": [(x, 1.0) for x in xs]}, top=1.0, whole=whole)]))
    assert shown == ["t", "line", "p", "0", "0.2", "0.4", "0.6", "0.8", "1", *labels, "x", "y"]


def test_nothing_to_draw() -> None:
    assert texts(drawing("t", [])) == ["t"]
    assert texts(drawing("t", [Panel("p", "x", "y", {"line": []})]))[:3] == ["t", "line", "p"]


def test_a_legend_takes_as_many_rows_as_it_needs() -> None:
    lines = {f"hybrid_mtp_ngram {at}": [(0.0, 1.0)] for at in range(8)}
    document = ET.fromstring(drawing("t", [Panel("p", "x", "y", lines)]))
    width, height = (float(document.attrib[name]) for name in ("width", "height"))
    legend = [text for text in document.iter(f"{SVG}text") if (text.text or "").startswith("hybrid")]
    assert len(legend) == 8
    assert all(float(text.attrib["x"]) + 7 * len(text.text or "") <= width for text in legend)
    assert max(float(text.attrib["y"]) for text in legend) < height - 250
