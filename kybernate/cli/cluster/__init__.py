"""Commands that work from anywhere: through the API server alone, by its objects."""
