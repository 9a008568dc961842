"""What a PySpark program needs to use the state store.

Beside it `keyed` and `api`, and their tests in `testing`, import pyspark; no other layer does.
"""
