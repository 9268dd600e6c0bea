"""What others are told of our own work: spans of a trace, from an API call to the instance that runs, sent as OTLP."""
