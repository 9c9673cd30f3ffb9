"""Builds the C extensions; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = {
    "jitshape.frontend._evalframe": "jitshape/frontend/_evalframe.c",
    "jitshape.backend._launch": "jitshape/backend/_launch.c",
}

setup(
    ext_modules=[
        Extension(
            name,
            [source],
            depends=[str(path) for path in Path(source).parent.glob("_*.h")],
            extra_compile_args=["-O2", "-fno-strict-aliasing"],
        )
        for name, source in SOURCES.items()
        if Path(source).exists()
    ]
)
