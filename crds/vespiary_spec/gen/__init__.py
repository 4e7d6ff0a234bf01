"""The generator: from the model to CRDs, the chart's schema and the reference pages."""
