"""What `spark-submit` is given: the commands of `quarry pipeline`, in the session that it has configured.

    spark-submit --master spark://host:7077 .../cli/pipeline/submit.py rebuild STORE

`spark-submit` wants a file, where `quarry pipeline` is a command. docs/pipeline.md says where this one lies.
"""

from quarry_mq.cli.pipeline import COMMANDS

if __name__ == "__main__":
    COMMANDS(prog_name="quarry pipeline")
