"""Run several brokers on one machine: `quarry serve --shards N`.

`plan` and `directory` need the settings and belong to the command that starts them; everything else runs in the
supervisor, which runs for as long as the shards do and loads nothing of a broker.
"""
