"""Generated messages and gRPC stubs of the package `turnwire.v1`; made by scripts/generate."""
