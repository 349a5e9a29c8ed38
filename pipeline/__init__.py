"""Jobs over whole stores that run on Spark. They need the extra `quarry-mq[pipeline]`, PySpark and Java 17 or newer.

- `pipeline.source` is the data source `quarry`, which shows stores as tables; `pipeline.stream` talks to live brokers;
- each job is a package: `rebuild`, `migrate` and `index` change a store, so no broker may run on it meanwhile;
  `verify`, `stats`, `export` and `replay` only read it;
- `pipeline.session` finds a Java that Spark can run on, and opens sessions for our own commands.

Every task decodes the store's bytes with the same codecs as the broker.
"""
