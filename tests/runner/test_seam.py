"""What outsiders plug in: one registry from the configuration to the last token, proposers that see what they ask for,
models that are refused by name, and steps that neither check nor allocate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import ConfigError, PluginError, UnsupportedError
from specdec_hal.ops import MatchPolicy
from specdec_hal.plugin import registry as registry_module
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import ModelSpec, ProposerSpec
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities
from specdec_hal.plugin.proposer import Proposer, ProposerContext, SlotView, StepView
from specdec_hal.plugin.registry import Registry
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from tests.registry.conftest import module_with
from tests.runner.conftest import PrefillFirst
from tests.support.decoding import plain_decoding
from tests.support.guess import Guess, GuessSettings, runner_with, with_proposer
from tests.support.history_model import CONTEXT, VOCABULARY, DeviceHistoryModel, HistoryModel, LetterTokenizer

PROPOSERS = "specdec_hal.proposers.plugin"
PROMPTS = ([3, 4, 5] * 4, [7, 8], [9] * 11)


def decode(runner: ModelRunner, **sampling: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 20, "bad_token_ids": [0], "temperature": 0.8, **sampling}
    for number, prompt in enumerate(PROMPTS):
        runner.add_request(Request(str(number), prompt, SamplingParams(seed=number, **params)))
    return {name: list(output.token_ids) for name, output in runner.run().items()}


def plain(**sampling: Any) -> dict[str, Any]:
    config = parse({"speculative": {"method": "naive"}, "runner": {"max_num_seqs": 1}})
    tokenizer: Any = LetterTokenizer()
    return decode(build_runner(config, ReferenceBackend(), HistoryModel(), tokenizer), **sampling)


class TestOneRegistry:
    """A Registry made by hand is honoured from parse() to the last token; nothing asks that of the process."""

    @pytest.fixture
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> Registry:
        for name in ("plugins", "backends", "get_backend", "get_proposer", "get_model", "step_finished", "models"):

            def refuse(*args: Any, name: str = name, **kwargs: Any) -> Any:
                raise AssertionError(f"the registry of the process was asked for {name}")

            monkeypatch.setattr(registry_module.default, name, refuse)
        self.records: list[Any] = []
        self.loaded: list[tuple[str, dict[str, Any]]] = []
        self.built: list[Guess] = []
        registry = Registry(builtins=(), entry_points=(), environ={})
        registry.register(
            module_with(
                specdec_backends=lambda: BackendSpec("mine", API_VERSION, lambda: Probe(True), self.backend),
                specdec_proposers=lambda: ProposerSpec("guess", self.proposer, GuessSettings),
                specdec_models=lambda: ModelSpec("Letters", "mine", self.model),
                specdec_step_finished=lambda record: self.records.append(record),
            ),
            "mine",
        )
        return registry

    def backend(self, options: Mapping[str, Any]) -> Backend:
        backend = ReferenceBackend()
        backend.name = f"mine {options['volume']}"
        return backend

    def model(self, path: Any, **options: Any) -> HistoryModel:
        self.loaded.append((str(path), options))
        return HistoryModel()

    def proposer(self, context: ProposerContext) -> Guess:
        self.built.append(Guess(context))
        return self.built[-1]

    def test_from_parse_to_the_last_token(self, registry: Registry, tmp_path: Any) -> None:
        (tmp_path / "config.json").write_text('{"architectures": ["Letters"]}')
        config = parse(
            {
                "backend": {"name": "mine", "options": {"volume": 11}},
                "model": {"path": str(tmp_path), "framework": "mine"},
                "runner": {"max_num_seqs": 2},
                "speculative": {
                    "method": "guess",
                    "num_speculative_tokens": 2,
                    "adaptive": False,
                    "guess": {"guess": 5},
                },
            },
            registry=registry,
        )
        runtime = Runtime(config, registry)
        tokenizer: Any = LetterTokenizer()
        runner = runtime.runner(tokenizer=tokenizer)
        outputs = decode(runner)
        assert runtime.backend.name == "mine 11"
        assert self.loaded == [(str(tmp_path), {"device": "cpu"})]
        assert self.records and len(self.records) == runner.metrics.steps
        (proposer,) = self.built
        context = proposer.context
        assert context.settings.guess == 5 and context.config is config and context.tokenizer is tokenizer
        assert context.model is runner.model and context.backend is runtime.backend and context.state is runner.state
        assert context.load_model(str(tmp_path)).config is HistoryModel.config
        assert runner.summary()["drafted_tokens"] > 0
        assert [len(tokens) for tokens in outputs.values()] == [20] * 3

    def test_a_configuration_of_another_registry(self) -> None:
        registry = with_proposer(Guess, settings=None)
        config = parse({"speculative": {"method": "guess"}}, registry=registry)
        backend, model = ReferenceBackend(), HistoryModel()
        with pytest.raises(ConfigError, match=r"configuration:speculative\.guess: not checked; parse it"):
            build_runner(config, backend, model, registry=with_proposer(Guess))
        with pytest.raises(UnsupportedError, match="unknown speculative method 'guess'"):
            build_runner(config, backend, model, registry=Registry(entry_points=(), builtins=(PROPOSERS,)))


class TestHostProposer:
    def test_it_sees_its_requests(self) -> None:
        made: list[Guess] = []
        runner = runner_with(lambda context: made.append(Guess(context)) or made[-1])  # type: ignore[func-returns-value]
        outputs = decode(runner)
        (proposer,) = made
        assert [slots for slots in proposer.resets] == [[0, 1], proposer.resets[-1]]
        tokens: dict[str, list[int]] = {name: [] for name in outputs}
        for views in proposer.slots:
            for view in views:
                tokens[view.request_id] += view.accepted
                prompt = PROMPTS[int(view.request_id)]
                assert view.accepted and list(view.prompt_token_ids) == prompt
                assert view.max_drafts == min(3, max(20 - len(tokens[view.request_id]) - 1, 0))
        for name, output in outputs.items():
            assert output[: len(tokens[name])] == tokens[name]
            assert len(output) - len(tokens[name]) in range(1, 5)  # the step that ends a request is not shown

    @pytest.mark.parametrize(
        "bad", [[VOCABULARY], [-1], [4, VOCABULARY, 4], [4] * 4], ids=["above", "below", "among good ones", "too many"]
    )
    def test_drafts_that_cannot_be_used_are_dropped_and_counted(self, bad: list[int]) -> None:
        class Careless(Guess):
            def tokens(self, view: SlotView) -> Sequence[int]:
                return bad if view.request_id == "1" else super().tokens(view)

        runner = runner_with(Careless)
        decoded = decode(runner)
        assert decoded == plain()
        assert runner.summary()["dropped_drafts"] == len(decoded["1"]) - 1
        assert runner.summary()["drafted_tokens"] > 20

    @settings(max_examples=30)
    @given(k=st.integers(0, 5), slots=st.integers(1, 3), seed=st.integers(0, 50), prefill_first=st.booleans())
    def test_whatever_is_drafted_the_tokens_stay(self, k: int, slots: int, seed: int, prefill_first: bool) -> None:
        rng = np.random.default_rng(seed)

        class Random(Guess):
            def tokens(self, view: SlotView) -> Sequence[int]:
                return rng.integers(1, VOCABULARY, rng.integers(0, view.max_drafts + 1)).tolist()

        runner = runner_with(Random, k=k, slots=slots, backend=PrefillFirst() if prefill_first else None)
        assert decode(runner) == plain()


class Layered(HistoryModel):
    """Gives a second layer, whose rows say which slot, position and token they are of."""

    capabilities = ModelCapabilities(hidden_layers=(FINAL_NORM, 3))

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        states = super().forward(batch)
        assert batch.hidden_layers == (3,)
        states[3] = np.zeros_like(states[FINAL_NORM])
        for segment in batch.segments:
            for i in range(segment.length):
                at = segment.start + i
                states[3][at, :3] = segment.slot, segment.position + i, batch.token_ids[at]
        return states


class TestHiddenStates:
    @pytest.mark.parametrize("prefill_first", [False, True])
    def test_rows_are_those_of_the_emitted_tokens(self, prefill_first: bool) -> None:
        checked: list[int] = []

        class Watching(Guess):
            hidden_layers = (3,)

            def propose(self, step: StepView) -> Any:
                assert set(step.hidden_states) == set(step.input_hidden_states) == {3}
                rows, inputs = step.hidden_states[3], step.input_hidden_states[3]
                first = step["cu_seqlens_q_output"]
                fed = [(int(slot), int(position)) for slot, position, *_ in inputs]
                assert len(fed) == len(set(fed)) and len(rows) <= len(inputs)
                for view in step.slots:
                    history = [*view.prompt_token_ids, *view.token_ids]
                    for i in range(len(view.accepted)):
                        slot, position, token = (int(value) for value in rows[first[view.slot] + i, :3])
                        start = len(history) - len(view.accepted)
                        assert (slot, position, token) == (view.slot, start + i - 1, history[start + i - 1])
                        assert (slot, position) in fed
                        checked.append(i)
                super().propose(step)

        backend = PrefillFirst() if prefill_first else None
        assert decode(runner_with(Watching, model=Layered(), backend=backend)) == plain()
        assert max(checked) >= 1

    def test_a_model_without_them_is_refused_by_name(self) -> None:
        class Greedy(Guess):
            hidden_layers = (3, 17)

        with pytest.raises(UnsupportedError, match=r"method 'guess' asks for hidden states of the layers \[17\], the"):
            runner_with(Greedy, model=Layered())


class TestDeviceProposer:
    """One that breaks its promises on the device costs its drafts and nothing else."""

    class Careless(Proposer):
        runs_on = "device"
        hidden_layers: tuple[int, ...] = ()
        gives_draft_probs = False
        bad, at = VOCABULARY, 1

        def __init__(self, context: ProposerContext) -> None:
            self.steps = 0

        def reset(self, slots: list[int]) -> None:
            pass

        def propose(self, step: StepView) -> None:
            """Two drafts for every decoding slot; those of slot `at` are invalid."""
            self.steps += 1
            decoding = (step["seq_lens_encoder"] == 0) & (step["seq_lens_decoder"] > 0)
            room = step["max_dec_len"] - step["step_idx"] > 2
            step["draft_tokens"][:, 1:] = 4
            step["draft_tokens"][self.at, 1:] = self.bad
            step["seq_lens_this_time"][:] = np.where(decoding, np.where(room, 3, 1), 0)

    @pytest.mark.parametrize("bad", [-1, VOCABULARY, 2**40])
    def test_drafts_outside_the_vocabulary_are_counted(self, bad: int) -> None:
        careless = type("Careless", (self.Careless,), {"bad": bad})
        runner = runner_with(careless)
        assert decode(runner) == plain()
        summary = runner.summary()
        assert summary["dropped_drafts"] > 0 < summary["accepted_tokens"]
        assert summary["failed_steps"] == 0

    @pytest.mark.parametrize("bad", [-1, VOCABULARY, 2**40])
    @pytest.mark.parametrize("device", [False, True])
    def test_debug_refuses_them(self, bad: int, device: bool) -> None:
        careless = type("Careless", (self.Careless,), {"bad": bad, "at": 0})
        runner = runner_with(careless, model=DeviceHistoryModel() if device else None)
        runner.backend.debug = True
        what = rf"proposer 'guess' left draft_tokens\[0, 1\] = {bad}, outside the vocabulary \[0, 24\)"
        with pytest.raises(PluginError, match=what):
            decode(runner)

    def test_debug_looks_at_base_tokens_and_lengths_too(self) -> None:
        class Overwriting(self.Careless):  # type: ignore[name-defined,misc]
            bad = 4

            def propose(self, step: StepView) -> None:
                super().propose(step)
                step["draft_tokens"][0, 0] = 2**40

        class Greedy(self.Careless):  # type: ignore[name-defined,misc]
            bad = 4

            def propose(self, step: StepView) -> None:
                step["seq_lens_this_time"][:] = np.where(step["seq_lens_decoder"] > 0, 9, 0)

        for proposer, what in (
            (Overwriting, r"left draft_tokens\[0, 0\] = 1099511627776"),
            (Greedy, "set 9 input tokens for slot 0, expected at most 4"),
        ):
            runner = runner_with(proposer)
            runner.backend.debug = True
            with pytest.raises(PluginError, match=what):
                decode(runner)

    @pytest.mark.parametrize("device", [False, True])
    @pytest.mark.parametrize("wrong", [[0, 1], [1], [0]])
    def test_one_that_fails_to_take_requests(self, wrong: list[int], device: bool) -> None:
        """Those requests lose their drafts, and none ends."""
        base = self.Careless if device else Guess

        class Full(base):  # type: ignore[valid-type,misc]
            bad = 4

            def reset(self, slots: list[int]) -> None:
                if set(slots) & set(wrong):
                    raise LookupError("no room")

            def propose(self, step: StepView) -> None:
                super().propose(step)
                if device:
                    lens, most = step["seq_lens_this_time"], 1 + step["draft_token_num"]
                    lens[:] = np.where(step["seq_lens_encoder"] > 0, lens, np.minimum(lens, most))

        runner = runner_with(Full)
        params = {"max_new_tokens": 20, "seed": 3}
        for number, prompt in enumerate(PROMPTS):
            runner.add_request(Request(str(number), prompt, SamplingParams(**params)))
        slots: dict[str, int] = {}
        while runner.has_requests:
            runner.step()
            slots |= {one.request.request_id: slot for slot, one in runner.scheduler.running.items()}
        outputs, summary = runner.take_finished(), runner.summary()
        assert summary["failed_steps"] == 0 < summary["failed_proposals"]
        for number, prompt in enumerate(PROMPTS):
            output = outputs[str(number)]
            assert list(output.token_ids) == plain_decoding(prompt, SamplingParams(**params)).tokens
            assert (output.drafted == 0) == (slots[str(number)] in wrong)

    def test_one_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        class Failing(self.Careless):  # type: ignore[name-defined,misc]
            bad = 4

            def propose(self, step: StepView) -> None:
                super().propose(step)
                if self.steps % 3 == 2:
                    raise LookupError("what is that")

        runner = runner_with(Failing)
        assert decode(runner) == plain()
        summary = runner.summary()
        assert summary["failed_proposals"] > 2 and summary["failed_steps"] == 0
        assert summary["accepted_tokens"] > 0
        assert "the proposer failed; the next step has no drafts" in caplog.text


class TestDraftProbs:
    """Under REJECTION the drafts of a step are held against what `propose` returned with them."""

    @staticmethod
    def giving(q: Callable[[np.ndarray], None], strategy: str = "rejection") -> dict[str, Any]:
        class Giving(Guess):
            gives_draft_probs = True

            def __init__(self, context: ProposerContext) -> None:
                super().__init__(context)
                self.probs = context.state.allocate("draft_probs", V=VOCABULARY)
                q(self.probs)

            def propose(self, step: StepView) -> Any:
                super().propose(step)
                return self.probs

        return decode(runner_with(Giving, strategy=strategy))

    def test_certain_drafts_are_those_without_probabilities(self) -> None:
        def one_hot(probs: np.ndarray) -> None:
            probs[:, :, 4] = 1

        assert self.giving(one_hot) == decode(runner_with(Guess, strategy="rejection"))

    def test_others_are_used(self) -> None:
        def uniform(probs: np.ndarray) -> None:
            probs[:] = 1 / VOCABULARY

        assert self.giving(uniform) != decode(runner_with(Guess, strategy="rejection"))

    def test_other_strategies_do_not_look_at_them(self) -> None:
        def uniform(probs: np.ndarray) -> None:
            probs[:] = 1 / VOCABULARY

        assert self.giving(uniform, "target_match") == plain()

    def test_undeclared(self) -> None:
        class Secretive(Guess):
            def propose(self, step: StepView) -> Any:
                return np.zeros((2, 3, VOCABULARY), np.float32)

        with pytest.raises(PluginError, match="'guess' returned draft probabilities and declares gives_draft_probs"):
            decode(runner_with(Secretive))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda context: 3, r"proposer 'guess' of plug-in 'guess' .*: 3 has no method 'reset'"),
        (lambda context: 1 / 0, r"its factory raised ZeroDivisionError: division by zero"),
        (lambda context: _without("runs_on")(context), r"runs_on: expected 'device' or 'host', got None"),
        (lambda context: _without("hidden_layers")(context), r"has no attribute 'hidden_layers'$"),
        (lambda context: _Alone(), r"has no method 'forget'; derive it from .*proposer.Proposer, which has"),
        (lambda context: _with(draft_position=2)(context), r"'draft_position', which no caller uses; did you mean"),
        (lambda context: _with(forgets=print)(context), r"has 'forgets', which .*; did you mean 'forget'\?"),
        (lambda context: _with(draft_positions=-1)(context), r"draft_positions: expected an integer >= 0, got -1"),
        (lambda context: _with(draft_positions=True)(context), r"draft_positions: expected an integer >= 0, got True"),
        (lambda context: type("Idle", (Proposer,), {})(), r"abstract class Idle .*methods propose, reset"),
    ],
)
def test_what_is_no_proposer(factory: Callable[..., Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        runner_with(factory)


def _without(name: str) -> type[Guess]:
    members = {key: value for key, value in vars(Guess).items() if key != name and not key.startswith("__")}
    return type("Partly", (Proposer,), {**members, "__init__": Guess.__init__})


def _with(**members: Any) -> type[Guess]:
    return type("More", (Guess,), members)


class _Alone:
    """All that has no default."""

    runs_on, hidden_layers, gives_draft_probs, draft_positions = "host", (), False, 0
    reset = propose = print


def test_pads_drafts_that_fails_is_its_plugins_fault() -> None:
    registry = with_proposer(Guess, pads_drafts=lambda settings: settings["guess"])
    speculative = {"method": "guess", "guess": {"guess": 4}}
    with pytest.raises(PluginError, match=r"proposer 'guess' of plug-in 'guess' .*: its pads_drafts raised TypeError"):
        build_runner(
            parse({"speculative": speculative}, registry=registry),
            ReferenceBackend(),
            HistoryModel(),
            registry=registry,
        )


def test_the_settings_of_ngram_reach_its_op() -> None:
    ngram = {
        "max_ngram_size": 5, "min_ngram_size": 2, "match_policy": "leftmost", "token_budget": 9, "pad_to_max": True,
    }  # fmt: skip
    config = parse({"speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False, "ngram": ngram}})
    backend, calls = ReferenceBackend(), []
    plan = backend.plan
    backend.plan = lambda call: calls.append(call) or plan(call)  # type: ignore[func-returns-value, method-assign]
    runner = build_runner(config, backend, HistoryModel())
    (match,) = [call for call in calls if call.op.name == "ngram_match"]
    assert {name: match.attrs[name] for name in ngram} == {**ngram, "match_policy": MatchPolicy.LEFTMOST}
    assert runner.max_model_len == CONTEXT - 3  # padded drafts get their room


class Counting(ReferenceBackend):
    """Counts what is bound."""

    bound = 0

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        self.bound += 1
        return super().bind(*args, **kwargs)


@pytest.mark.parametrize("strategy", ["target_match", "rejection", "topp"])
@pytest.mark.parametrize(
    "sampling",
    [{}, {"repetition_penalty": 1.2}, {"logprobs": 3}, {"logprobs": 5, "presence_penalty": 0.2}],
    ids=["tokens", "penalties", "logprobs", "both"],
)
def test_a_second_run_binds_and_allocates_nothing(
    strategy: str, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Counting()
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False, "verify_strategy": strategy}
    config = parse({"speculative": speculative, "runner": {"max_num_seqs": 2, "prefill_chunk": 5}})
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(config, backend, HistoryModel(), tokenizer)
    first = decode(runner, **sampling)
    assert backend.bound > 5
    backend.bound = 0
    made: list[str] = []
    for name in ("zeros", "upload", "copy"):
        monkeypatch.setattr(runner.state.device, name, lambda *args, name=name: made.append(name))
    assert decode(runner, **sampling) == first
    assert (backend.bound, made) == (0, [])


def test_alternatives_are_rounded_up_and_delivered_as_asked() -> None:
    """Plans for 3 and for 4 alternatives are the same, what a request gets is not."""
    backend = Counting()
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(parse({}), backend, HistoryModel(), tokenizer)
    tops: dict[int, list[Any]] = {}
    for wanted in (4, 3, 0, 23, 1000):
        runner.add_request(Request("a", [3, 4], SamplingParams(max_new_tokens=6, logprobs=wanted)))
        tops[wanted] = [entry.top for entry in runner.run()["a"].logprobs]
    assert [top[:3] for top in tops[4]] == tops[3] and [len(tops[n][0]) for n in (4, 3, 0)] == [4, 3, 0]
    assert tops[23] == tops[1000] and len(tops[23][0]) == VOCABULARY - 1
