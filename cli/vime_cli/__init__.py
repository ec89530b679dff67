"""The command line. Importing it, and listing its commands, imports nothing heavy."""
