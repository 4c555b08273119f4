"""The picture of the home page shows what the embedded model writes today, and figures that are recorded."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import home_picture


def test_the_picture_is_up_to_date() -> None:
    drawn = home_picture.draw()
    assert drawn.count(f'fill="{home_picture.BACK}"') > 10
    assert drawn == home_picture.FILE.read_text(encoding="utf-8"), "run: python tools/home_picture.py"
