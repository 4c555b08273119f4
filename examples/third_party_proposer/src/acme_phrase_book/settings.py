"""The section ``speculative.phrase_book``. Ranges, unknown keys and missing keys are checked by specdec_hal."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specdec_hal.config import PathText, Section, raise_combinations


class PhraseBookSettings(Section):
    """`corpus`: a text file, relative to the configuration that names it. `longest`, `shortest`: how many of the last
    tokens are looked up, the longest first.
    """

    corpus: PathText
    longest: Annotated[int, Field(ge=1, le=16)] = 6
    shortest: Annotated[int, Field(ge=1, le=16)] = 2

    @model_validator(mode="after")
    def _check_sizes(self) -> PhraseBookSettings:
        if self.shortest > self.longest:
            raise_combinations([("shortest", f"expected at most longest = {self.longest}, got {self.shortest}")])
        return self
