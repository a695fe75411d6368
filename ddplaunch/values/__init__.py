"""The values that every room uses: settings with their source, findings, words, JSON."""
