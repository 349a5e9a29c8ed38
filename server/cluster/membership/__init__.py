"""The members of a cluster: who they are, how they are found, and which one owns which message group."""
