"""The continent of a country, however data name it: by an ISO 3166 code, or in English.

Codes and names are those of the time zone database (public domain); a country on two continents is
where its capital lies.
"""

import re

_COUNTRIES = {
    "Africa": """
        AO Angola; BF Burkina Faso; BI Burundi; BJ Benin; BW Botswana; CD Congo (Dem. Rep.); CF
        Central African Rep.; CG Congo (Rep.); CI Côte d’Ivoire; CM Cameroon; CV Cape Verde; DJ
        Djibouti; DZ Algeria; EG Egypt; EH Western Sahara; ER Eritrea; ET Ethiopia; GA Gabon; GH
        Ghana; GM Gambia; GN Guinea; GQ Equatorial Guinea; GW Guinea-Bissau; KE Kenya; KM Comoros;
        LR Liberia; LS Lesotho; LY Libya; MA Morocco; MG Madagascar; ML Mali; MR Mauritania; MU
        Mauritius; MW Malawi; MZ Mozambique; NA Namibia; NE Niger; NG Nigeria; RE Réunion; RW
        Rwanda; SC Seychelles; SD Sudan; SH St Helena; SL Sierra Leone; SN Senegal; SO Somalia; SS
        South Sudan; ST Sao Tome & Principe; SZ Eswatini (Swaziland); TD Chad; TG Togo; TN Tunisia;
        TZ Tanzania; UG Uganda; YT Mayotte; ZA South Africa; ZM Zambia; ZW Zimbabwe
    """,
    "Americas": """
        AG Antigua & Barbuda; AI Anguilla; AR Argentina; AW Aruba; BB Barbados; BL St Barthelemy; BM
        Bermuda; BO Bolivia; BQ Caribbean NL; BR Brazil; BS Bahamas; BZ Belize; CA Canada; CL Chile;
        CO Colombia; CR Costa Rica; CU Cuba; CW Curaçao; DM Dominica; DO Dominican Republic; EC
        Ecuador; FK Falkland Islands; GD Grenada; GF French Guiana; GL Greenland; GP Guadeloupe; GS
        South Georgia & the South Sandwich Islands; GT Guatemala; GY Guyana; HN Honduras; HT Haiti;
        JM Jamaica; KN St Kitts & Nevis; KY Cayman Islands; LC St Lucia; MF St Martin (French); MQ
        Martinique; MS Montserrat; MX Mexico; NI Nicaragua; PA Panama; PE Peru; PM St Pierre &
        Miquelon; PR Puerto Rico; PY Paraguay; SR Suriname; SV El Salvador; SX St Maarten (Dutch);
        TC Turks & Caicos Is; TT Trinidad & Tobago; US United States; UY Uruguay; VC St Vincent; VE
        Venezuela; VG Virgin Islands (UK); VI Virgin Islands (US)
    """,
    "Antarctica": """
        AQ Antarctica; BV Bouvet Island; HM Heard Island & McDonald Islands; TF French S. Terr.
    """,
    "Asia": """
        AE United Arab Emirates; AF Afghanistan; AM Armenia; AZ Azerbaijan; BD Bangladesh; BH
        Bahrain; BN Brunei; BT Bhutan; CN China; CY Cyprus; GE Georgia; HK Hong Kong; ID Indonesia;
        IL Israel; IN India; IO British Indian Ocean Territory; IQ Iraq; IR Iran; JO Jordan; JP
        Japan; KG Kyrgyzstan; KH Cambodia; KP Korea (North); KR Korea (South); KW Kuwait; KZ
        Kazakhstan; LA Laos; LB Lebanon; LK Sri Lanka; MM Myanmar (Burma); MN Mongolia; MO Macau; MV
        Maldives; MY Malaysia; NP Nepal; OM Oman; PH Philippines; PK Pakistan; PS Palestine; QA
        Qatar; SA Saudi Arabia; SG Singapore; SY Syria; TH Thailand; TJ Tajikistan; TL East Timor;
        TM Turkmenistan; TR Turkey; TW Taiwan; UZ Uzbekistan; VN Vietnam; YE Yemen
    """,
    "Europe": """
        AD Andorra; AL Albania; AT Austria; AX Åland Islands; BA Bosnia & Herzegovina; BE Belgium;
        BG Bulgaria; BY Belarus; CH Switzerland; CZ Czech Republic; DE Germany; DK Denmark; EE
        Estonia; ES Spain; FI Finland; FO Faroe Islands; FR France; GB Britain (UK); GG Guernsey; GI
        Gibraltar; GR Greece; HR Croatia; HU Hungary; IE Ireland; IM Isle of Man; IS Iceland; IT
        Italy; JE Jersey; LI Liechtenstein; LT Lithuania; LU Luxembourg; LV Latvia; MC Monaco; MD
        Moldova; ME Montenegro; MK North Macedonia; MT Malta; NL Netherlands; NO Norway; PL Poland;
        PT Portugal; RO Romania; RS Serbia; RU Russia; SE Sweden; SI Slovenia; SJ Svalbard & Jan
        Mayen; SK Slovakia; SM San Marino; UA Ukraine; VA Vatican City
    """,
    "Oceania": """
        AS Samoa (American); AU Australia; CC Cocos (Keeling) Islands; CK Cook Islands; CX Christmas
        Island; FJ Fiji; FM Micronesia; GU Guam; KI Kiribati; MH Marshall Islands; MP Northern
        Mariana Islands; NC New Caledonia; NF Norfolk Island; NR Nauru; NU Niue; NZ New Zealand; PF
        French Polynesia; PG Papua New Guinea; PN Pitcairn; PW Palau; SB Solomon Islands; TK
        Tokelau; TO Tonga; TV Tuvalu; UM US minor outlying islands; VU Vanuatu; WF Wallis & Futuna;
        WS Samoa (western)
    """,
}
# Further names: what gazetteers and maps say.
_ALSO = """
    BA Bosnia and Herzegovina; BN Brunei Darussalam; CF Central African Republic; CD Democratic
    Republic of the Congo; CD DR Congo; CG Republic of the Congo; CG Congo; CI Ivory Coast; CZ
    Czechia; FM Federated States of Micronesia; GB United Kingdom; GB Great Britain; GB UK; GB
    England; GB Scotland; GB Wales; GB Northern Ireland; KP North Korea; KR South Korea; KR
    Republic of Korea; LA Lao PDR; MK Macedonia; MM Burma; MM Myanmar; PS Palestinian
    Territories; RU Russian Federation; SY Syrian Arab Republic; SZ Swaziland; TR Türkiye; TW
    Republic of China; TZ United Republic of Tanzania; US United States of America; US USA; VA
    Vatican; VA Holy See; VN Viet Nam
"""


def continent_of(country: str) -> str | None:
    """`Europe` for `FR`, `France` or `france`; None for a name that is not known."""
    return _CONTINENTS.get(_plain(country))


def _plain(name: str) -> str:
    """Letters alone, without what spellings differ in."""
    words = re.findall(r"[^\W\d_]+", name.lower().replace("&", " and "))
    words = ["st" if word == "saint" else word for word in words]
    return "".join(word for word in words if word not in ("the", "and", "of"))


def _entries(text: str) -> list[tuple[str, str]]:
    """(code, name) of each country in a list."""
    pairs = (entry.split(" ", 1) for entry in " ".join(text.split()).split("; "))
    return [(code, name) for code, name in pairs]


def _read() -> dict[str, str]:
    """Every code and name, made plain -> the continent."""
    of_code = {
        code: continent for continent, text in _COUNTRIES.items() for code, _ in _entries(text)
    }
    names = [pair for text in (*_COUNTRIES.values(), _ALSO) for pair in _entries(text)]
    plain = {_plain(name): of_code[code] for code, name in names}
    return plain | {_plain(code): continent for code, continent in of_code.items()}


_CONTINENTS = _read()
