"""Continents of countries, however data name them."""

import pytest

from acclimate.paper.geo_yfcc.continents import continent_of


@pytest.mark.parametrize(
    ("names", "continent"),
    [
        (("US", "us", "USA", "United_States", "United States of America"), "Americas"),
        (("GB", "United Kingdom", "UK", "Scotland"), "Europe"),
        (("KR", "South Korea", "Korea (South)", "Republic of Korea"), "Asia"),
        (("TR", "Turkey", "Türkiye"), "Asia"),  # where its capital lies
        (("RU", "Russia", "Russian Federation"), "Europe"),
        (("CI", "Ivory Coast", "Côte d’Ivoire", "The Gambia", "CD"), "Africa"),
        (("Saint Lucia", "St Lucia", "Trinidad and Tobago", "Trinidad & Tobago"), "Americas"),
        (("New Zealand", "Papua New Guinea", "WS"), "Oceania"),
        (("Atlantis", "", "site-3", "XX"), None),
    ],
)
def test_names_of_countries(names: tuple[str, ...], continent: str | None) -> None:
    assert {name: continent_of(name) for name in names} == dict.fromkeys(names, continent)
