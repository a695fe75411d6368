"""Options that the script declares, by what declares them: calls, commands, and the fields of classes."""
