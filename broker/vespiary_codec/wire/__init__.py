"""Sans-I/O codecs of the wire protocols, one package for each protocol."""
