"""The wire contract: .proto files with the code generated from them (`make proto`)."""
