"""What people may import is frozen here, explained in a docstring, and shown by examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pickle
import pkgutil

import pytest

import rolltape
from tests.stacks import may_lack

NAMES = """
Action Batch BatchError ConfigError CorruptFileError Decision DiskFullError EngineError
EngineUnreachableError ExpectationError FileReplacedError FormatVersionError GenerationError Key KeyNameError
MatchLevel
MemoryLimitError MisplacedFileError
MismatchError MissingDependencyError Mode NoStepError NotATapeError OnError OnMiss Overwrite Pool
PromptError
RecordError Recording Report RolltapeError Run Settings StageError StaleWeightsError StepExistsError
StepMissingError StepSelector StorageError StoreUnreachableError Summary Tape TapeClosedError
TapeNotFoundError TapeReadOnlyError
TooLateError Trust UnknownAdapterError UnsupportedReleaseError UnsupportedValueError WeightsError __version__
compare deterministic open pool register_adapter register_role serve trust
""".split()

PACKAGES = {
    "rolltape.engines": """
Completion Engine FinishReason LogprobKind Mismatch OpenAIEngine Prompt RayEngine Rollout SGLangEngine
SamplingParams TransformersEngine VLLMEngine mismatch score seed_for
""",
    "rolltape.index": "Sample SampleIndex canonical prompt_digest sampling_digest",
    "rolltape.reader": "Places Row Run Samples TokenPlaces open",
    "rolltape.verify": """
Comparison Difference Entry Finding Gate Limits Report Verdict compare compare_tapes judge measure
""",
    "rolltape.exporting": "Choice Export FORMATS STDOUT export_tape",
    "rolltape.importing": "Report UnsafeDumpError import_dumps read_dump",
    "rolltape.pooling": "FORMATS Filtered Pool PoolRow Training UNIQUE filter_tapes pool",
    "rolltape.ray": "ClusterError cluster read write",
    "rolltape.serving": "Server read_options run_server secured serve",
    "rolltape.viewer": "browse export_html serve",
}
"""What people may import from the rooms that the documentation names."""

OPTIONAL = {
    "PIL",
    "aiohttp",
    "omegaconf",
    "tensordict",
    "tokenizers",
    "torch",
    "transfer_queue",
    "transformers",
    "verl",
    "yaml",
}
"""What a module of ours may need that is not installed in every stack."""


def modules() -> list[str]:
    found = pkgutil.walk_packages(rolltape.__path__, "rolltape.", onerror=lambda name: None)
    return ["rolltape", *(module.name for module in found if not module.name.endswith("__main__"))]


def test_the_public_names() -> None:
    assert sorted(rolltape.__all__) == sorted(NAMES)
    assert len(set(rolltape.__all__)) == len(rolltape.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_of_a_room(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PACKAGES[package].split())
    for name in module.__all__ if package != "rolltape.engines" else ():  # whose libraries may be missing
        assert inspect.getdoc(getattr(module, name)), name


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__version__"}))
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(rolltape, name)
    assert value.__doc__
    assert value.__doc__.strip()
    if inspect.isclass(value) and value.__module__.startswith("rolltape"):
        for method, member in vars(value).items():
            if not method.startswith("_") and (
                callable(member) or isinstance(member, (property, classmethod))
            ):
                assert inspect.getdoc(getattr(value, method)), f"{name}.{method}"


def test_every_error_is_a_rolltape_error_and_one_of_pythons() -> None:
    for name in rolltape.errors.__all__:
        error = getattr(rolltape, name)
        assert issubclass(error, rolltape.RolltapeError)
        builtin = [base for base in error.__mro__ if base.__module__ == "builtins"]
        assert name == "RolltapeError" or builtin[0] is not Exception, (
            f"{name} inherits no error people would catch"
        )
        shown = str(error("what happened", where="here", causes=["this"], hint="that"))
        assert shown == "what happened\n  where: here\n  likely cause: this\n  next: that"
        raised = error("what happened", where="here", causes=["this"], hint="that")
        assert str(pickle.loads(pickle.dumps(raised))) == shown, "errors cross process borders"


@pytest.mark.parametrize("name", modules())
def test_the_examples_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OPTIONAL and not isinstance(error, rolltape.MissingDependencyError):
            raise
        if not may_lack(missing):
            raise
        pytest.skip(f"needs {missing or error}")
    assert module.__doc__ or name.endswith("._version"), f"{name} does not say what it knows"
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert not result.failed


def test_most_of_the_interface_has_an_example() -> None:
    finder = doctest.DocTestFinder(recurse=True)
    for value in (
        rolltape,
        rolltape.Tape,
        rolltape.Batch,
        rolltape.Settings,
        rolltape.Key,
        rolltape.StepSelector,
    ):
        assert any(test.examples for test in finder.find(value)), value
