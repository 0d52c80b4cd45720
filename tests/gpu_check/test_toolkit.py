"""Where torch is told to find the toolkit, on machines where it would look in the wrong place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpu_check import toolkit
from gpu_check.toolkit import toolkit_environment


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of /usr/local, with nothing of CUDA's in the environment."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "usr-local"
    root.mkdir()
    monkeypatch.setattr(toolkit, "_ROOTS", root)
    monkeypatch.setattr(toolkit, "nvidia_packages", list)
    return root


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def write_toolkit(home: Path, *, whole: bool = True) -> Path:
    """Returns its nvcc. Not `whole`: the compiler alone."""
    touch(home / "bin" / "nvcc", home / "include" / "cuda_runtime.h")
    if whole:
        touch(home / "lib64" / "libcudart.so")
        touch(*(home / "include" / name for name in toolkit._HEADERS))
    return home / "bin" / "nvcc"


def test_a_whole_toolkit_is_used_alone(root: Path, tmp_path: Path) -> None:
    nvcc = write_toolkit(root / "cuda")
    found = toolkit_environment(str(nvcc), tmp_path)
    assert found == {"CUDA_HOME": str(root / "cuda"), "LIBRARY_PATH": str(root / "cuda" / "lib64")}


def test_a_script_named_nvcc_does_not_say_where_the_toolkit_is(root: Path, tmp_path: Path) -> None:
    write_toolkit(root / "cuda-13.0")
    touch(root / "bin" / "nvcc")
    assert toolkit_environment(str(root / "bin" / "nvcc"), tmp_path)["CUDA_HOME"] == str(root / "cuda-13.0")


def test_a_link_to_nvcc_does(root: Path, tmp_path: Path) -> None:
    nvcc = write_toolkit(tmp_path / "elsewhere")
    (root / "bin").mkdir()
    (root / "bin" / "nvcc").symlink_to(nvcc)
    assert toolkit_environment(str(root / "bin" / "nvcc"), tmp_path)["CUDA_HOME"] == str(tmp_path / "elsewhere")


def test_what_the_user_named_comes_first(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toolkit(root / "cuda")
    write_toolkit(tmp_path / "named")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    assert toolkit_environment(None, tmp_path)["CUDA_HOME"] == str(tmp_path / "named")


def test_a_compiler_alone_gets_the_rest_from_the_packages_of_torch(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nvidia" / "cu13"
    touch(package / "include" / "cublas_v2.h", package / "lib" / "libcudart.so.13")
    monkeypatch.setattr(toolkit, "nvidia_packages", lambda: [package])
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "/opt/include")
    found = toolkit_environment(str(write_toolkit(root / "cuda", whole=False)), tmp_path / "state")
    assert found["CPLUS_INCLUDE_PATH"] == os.pathsep.join(["/opt/include", str(package / "include")])
    link = Path(found["LIBRARY_PATH"]) / "libcudart.so"
    assert link.resolve() == package / "lib" / "libcudart.so.13"


def test_without_a_toolkit_nothing_is_set(root: Path, tmp_path: Path) -> None:
    assert toolkit_environment(None, tmp_path) == {}
