"""The one thing that pyproject.toml cannot say: the cffi extension."""

from setuptools import setup

setup(cffi_modules=["native/build_native.py:ffi"])
