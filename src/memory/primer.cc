#include "memory/primer.h"

#include <array>
#include <string_view>

namespace inferscale {
namespace {

constexpr std::array<const char*, 32> kLines = {
    "4 March 2021: Alex started a pottery class at the community center on Tuesday evenings.\n",
    "11 March 2021: Robin repaired the old bicycle and rides it to the office again.\n",
    "19 April 2021: Alex made two blue bowls and gave one of them to Robin.\n",
    "2 May 2021: Robin's sister visited for the weekend and they went hiking by the lake.\n",
    "27 May 2021: Alex is reading a long novel about a lighthouse keeper.\n",
    "14 June 2021: Robin planted tomatoes and basil on the balcony.\n",
    "30 June 2021: Alex was offered a new position and is thinking about it.\n",
    "8 July 2021: Robin plans to learn Italian before the trip in September.\n",
    "21 July 2021: Alex accepted the new position and starts on the first of August.\n",
    "9 August 2021: Robin harvested the first tomatoes and cooked for the neighbors.\n",
    "25 August 2021: Alex feels more confident at work after the first few weeks.\n",
    "12 September 2021: Robin spent ten days in Italy and enjoyed the food most of all.\n",
    "28 September 2021: Alex joined a choir that meets every Thursday.\n",
    "10 October 2021: Robin lost a pair of glasses on the train and had to buy new ones.\n",
    "23 October 2021: Alex ran ten kilometers for the first time.\n",
    "7 November 2021: Robin is saving money for a better camera.\n",
    "20 November 2021: Alex sang at a small concert and was very nervous before it.\n",
    "5 December 2021: Robin baked cookies with the children next door.\n",
    "18 December 2021: Alex will spend the holidays with the family in the mountains.\n",
    "9 January 2022: Robin decided to drink less coffee this year.\n",
    "22 January 2022: Alex moved to an apartment with a view of the park.\n",
    "6 February 2022: Robin bought the camera and takes pictures of birds.\n",
    "19 February 2022: Alex painted the kitchen yellow with the help of two friends.\n",
    "5 March 2022: Robin's picture of a heron won a prize in a local contest.\n",
    "17 March 2022: Alex stopped the pottery class because of the choir.\n",
    "2 April 2022: Robin is thinking about a dog but travels too often.\n",
    "16 April 2022: Alex has a cold and stays at home for a few days.\n",
    "1 May 2022: Robin teaches photography to a group of beginners on Sundays.\n",
    "15 May 2022: Alex wants to visit the sea in summer.\n",
    "29 May 2022: Robin repaired the neighbor's radio and got a cake for it.\n",
    "12 June 2022: Alex booked a small house near the sea for two weeks in July.\n",
    "26 June 2022: Robin will look after Alex's plants during the holidays.\n",
};

constexpr std::array<std::string_view, 2> kPeople = {"Alex", "Robin"};

std::string with_names(std::string_view line, std::span<const std::string> names) {
  std::string out;
  for (std::size_t at = 0; at < line.size();) {
    std::size_t person = 0;
    while (person < kPeople.size() && !line.substr(at).starts_with(kPeople[person])) {
      ++person;
    }
    if (person == kPeople.size()) {
      out += line[at++];
      continue;
    }
    out += person < names.size() ? std::string_view(names[person]) : kPeople[person];
    at += kPeople[person].size();
  }
  return out;
}

}  // namespace

std::vector<std::string> primer_lines(std::size_t n) { return primer_lines(n, {}); }

std::vector<std::string> primer_lines(std::size_t n, std::span<const std::string> names) {
  std::vector<std::string> lines;
  lines.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    lines.push_back(with_names(kLines[i % kLines.size()], names));
  }
  return lines;
}

}  // namespace inferscale
