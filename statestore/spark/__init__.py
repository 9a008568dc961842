"""What a PySpark program needs to run on the state store. The only place that may import pyspark."""
