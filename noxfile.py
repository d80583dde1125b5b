"""What CI runs, as named tasks: `nox -s tests`, `nox -s lint`, ... `nox -l` lists them."""

import nox

nox.needs_version = ">= 2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests", "stubs"]

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
SANITIZERS = ["asan", "tsan", "emulated-asan"]


def extra(name: str) -> list[str]:
    """List the requirements of an optional dependency set, without the project itself."""
    return list(PROJECT["project"]["optional-dependencies"][name])


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Install the project and run the tests: `nox -s tests-3.13 -- tests/neuron`."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest NumPy that the metadata allows."""
    session.install(".[test]", "numpy==2.1.*")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check formats, lint, spelling, metadata and the walls: `nox -s lint -- --fix` rewrites."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("tools/lint", *session.posargs, external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package."""
    session.install(*nox.project.dependency_groups(PROJECT, "types"))
    session.run("mypy", *session.posargs)


@nox.session
def stubs(session: nox.Session) -> None:
    """Write the stub of the extension module: `nox -s stubs -- --check` only compares."""
    session.install(".[test]")
    session.run("python", "tools/stubs", *session.posargs)


@nox.session
def emulated(session: nox.Session) -> None:
    """Run the tests on the Objective-C++ core and the emulated Metal."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"), *extra("test"))
    session.run("tools/emulated", *session.posargs, external=True)


@nox.session
@nox.parametrize("preset", SANITIZERS, ids=SANITIZERS)
def sanitize(session: nox.Session, preset: str) -> None:
    """Run the tests under a sanitizer: `nox -s "sanitize(tsan)"`."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"), *extra("test"))
    session.run("tools/sanitize", preset, *session.posargs, external=True)


@nox.session
def isa(session: nox.Session) -> None:
    """Build, and prove that the objects of different instruction sets share no symbol."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"))
    session.run("cmake", "--preset", "release")
    session.run("cmake", "--build", "--preset", "release")
    session.run("tools/check-isa-symbols", "build/release", external=True)


@nox.session
def tidy(session: nox.Session) -> None:
    """Run clang-tidy on every C++ file; needs clang-19 and clang-tidy-19: `nox -s tidy -- -j 4`."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"))
    session.run("cmake", "--preset", "tidy")
    session.run("cmake", "--build", "--preset", "tidy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    session.install(".", *nox.project.dependency_groups(PROJECT, "docs"))
    session.run("sphinx-build", "-n", "-W", "-b", "html", "docs", "build/docs")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks: `nox -s bench -- --filter neuron`."""
    session.install(".[bench]")
    session.run("python", "-m", "benchmarks", *session.posargs)
