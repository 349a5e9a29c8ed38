"""Work over whole stores, on Spark: the extra `quarry-mq[pipeline]`, PySpark and Java 17 or newer.

- `pipeline.source` is the data source `quarry`: `spark.read.format("quarry")`;
- `pipeline.session` makes sessions for our own commands, `pipeline.java` finds a Java that Spark can run on.

Every task reads bytes of the store through the same codecs as the broker. Nothing here needs a broker to run, and
nothing changes the store that it reads.
"""
