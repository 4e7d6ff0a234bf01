"""The one writer of the disk: volumes, journals, pages, large messages."""
