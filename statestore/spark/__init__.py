"""What a PySpark program needs to use the state store; no other layer imports pyspark."""
