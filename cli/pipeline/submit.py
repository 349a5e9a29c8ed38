"""The file for `spark-submit`: it runs the commands of `quarry pipeline` in the session that `spark-submit` configures.

    spark-submit --master spark://host:7077 .../cli/pipeline/submit.py rebuild STORE

`spark-submit` needs a file, while `quarry pipeline` is a command. docs/pipeline.md says where this file lies.
"""

from quarry_mq.cli.pipeline import COMMANDS

if __name__ == "__main__":
    COMMANDS(prog_name="quarry pipeline")
