"""The console's way to the admin port: JSON to protobuf and back, and a signature per call."""
