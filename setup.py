from setuptools import setup

setup(cffi_modules=["rmaext/_build.py:ffibuilder"])
