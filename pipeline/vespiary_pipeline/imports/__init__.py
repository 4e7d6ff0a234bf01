"""DataFrames become the files of a broker that does not exist yet."""
