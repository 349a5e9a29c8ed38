"""The service of the admin port that answers with the overview and with pages of topics and groups."""
