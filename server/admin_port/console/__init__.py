"""The console's access to the admin port: JSON to protobuf and back, and a signature per call."""
