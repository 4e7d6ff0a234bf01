"""The typed model of every setting and resource: CRDs, schemas and docs come from it."""
