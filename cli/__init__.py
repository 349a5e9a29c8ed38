"""The `quarry` command."""

import os

# grpc reads this when it is imported. At the end of a process its C core may complain of a descriptor that it closed
# itself; failures that matter to the user are errors of a call, which the commands report.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
