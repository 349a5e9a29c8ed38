"""The `quarry` command."""

import os

# Read when grpc is imported. At the end of a process the C core may complain of a descriptor that it closed itself;
# what fails for the user is an error of the call, which the commands tell in words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
