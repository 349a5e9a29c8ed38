"""Work over whole stores, on Spark: the extra `quarry-mq[pipeline]`, PySpark and Java 17 or newer.

- `pipeline.source` is the data source `quarry`: stores as tables; `pipeline.stream`, what of it talks to live brokers;
- jobs are packages of their own: `rebuild`, `migrate` and `index` change a store, which no broker may run on then;
  `verify`, `stats`, `export` and `replay` only read it;
- `pipeline.session` makes sessions for our own commands, `pipeline.java` finds a Java that Spark can run on.

Every task reads bytes of the store through the same codecs as the broker.
"""
