"""The metadata and content of the distribution: airllm, sources for C++ programs, and declared kernels.

Kernel modules are in cpp_ext/, and at the top level of a wheel, where `build_ext` puts the compiled ones. A
wheel has the sources for C++ programs, the chat page and folders that backends share inside airllm.
"""

from pathlib import Path

from airllm.backends.declaration import shipped

from .probes import CHECKOUT, CPP_EXT
from .recipes import module_recipes

KEYWORDS = ("llm", "inference", "tensor", "simd", "metal")
FOR_PROGRAMS = ("cmake", "cpu", "include/airllm/backend", "ops", "program")
OWN_DATA = ("py.typed", "*.pyi", "serving/page/*", "serving/page/*/*")  # the latter are the chat page
NO_DATA = {".py", ".pyc", ".pyd", ".so"}


def arguments() -> dict[str, str | dict | list]:
    """The arguments of setuptools' setup() that are derived from the backends' declarations."""
    titles = [own.title for own in shipped().values()]
    what = "The tensor operations of Llama-family models"
    return {
        "description": f"{what} on {', '.join(titles[:-1])} and {titles[-1]}",
        "keywords": [*KEYWORDS, *map(str.lower, titles)],
        **package_contents(),
    }


def package_contents() -> dict[str, dict | list]:
    """The content of a wheel, and where it is in the checkout."""
    names = kernels()
    packages = [name for name in names if (CPP_EXT / name).is_dir()]
    folders = shared_folders()
    return {
        "packages": [*python_packages(CHECKOUT, "airllm"), *packages_in(packages), *folders],
        "package_dir": {"": CPP_EXT.name, "airllm": "airllm", **folders},
        "package_data": {"airllm": [*OWN_DATA], **dict.fromkeys(folders, ["**/*"]), **data_of(packages)},
        "py_modules": [name for name in names if (CPP_EXT / f"{name}.py").is_file()],
    }


def kernels() -> list[str]:
    """The kernel modules that are not compiled."""
    compiled = {recipe.NAME for recipe in module_recipes().values()}
    return sorted({own.module for own in shipped().values() if own.module} - compiled)


def packages_in(names: list[str]) -> list[str]:
    return [package for name in names for package in python_packages(CPP_EXT, name)]


def python_packages(folder: Path, name: str) -> list[str]:
    """A package in `folder`, and its subpackages."""
    places = sorted(path.parent for path in (folder / name).rglob("__init__.py"))
    return [".".join(place.relative_to(folder).parts) for place in places]


def shared_folders() -> dict[str, str]:
    """Shared folders, by their package names in the wheel."""
    of_backends = [each for own in shipped().values() for each in own.folders]
    names = {
        f"airllm.{CPP_EXT.name}.{each.replace('/', '.')}": each for each in (*FOR_PROGRAMS, *of_backends)
    }
    return {name: f"{CPP_EXT.name}/{folder}" for name, folder in names.items()}


def data_of(packages: list[str]) -> dict[str, list[str]]:
    """Files of kernel packages other than Python modules, such as kernel sources."""
    found = {}
    for package in packages:
        files = [path for path in (CPP_EXT / package).rglob("*") if path.is_file()]
        data = [path.relative_to(CPP_EXT / package) for path in files if path.suffix not in NO_DATA]
        found[package] = sorted(path.as_posix() for path in data)
    return found
